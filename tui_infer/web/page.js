// Whoever opens the page can type at once: the terminal has the focus as soon as the app draws.
const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
const drawn = new MutationObserver(() => {
  if (!document.body.classList.contains("-first-byte")) return;
  drawn.disconnect();
  focus();
});
drawn.observe(document.documentElement, { subtree: true, attributeFilter: ["class"] });
window.addEventListener("focus", focus);
