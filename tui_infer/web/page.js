// Whoever opens the page can type at once: the terminal has the focus as soon as the app draws.
const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
const drawn = new MutationObserver(() => {
  if (!document.body.classList.contains("-first-byte")) return;
  drawn.disconnect();
  focus();
});
drawn.observe(document.documentElement, { subtree: true, attributeFilter: ["class"] });
window.addEventListener("focus", focus);

// What the app copies comes over the socket, and a browser may refuse to copy what nobody clicked for.
const copy = navigator.clipboard?.writeText.bind(navigator.clipboard);

const copyByHand = (text) => {
  const field = document.body.appendChild(document.createElement("textarea"));
  field.value = text;
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
};

const offer = (text) => {
  const bar = document.querySelector(".copy");
  const say = (words) => { bar.querySelector("span").textContent = words; };
  const close = () => { bar.hidden = true; focus(); };
  say(`The browser asks for a click to copy ${text.length.toLocaleString("en")} characters.`);
  for (const button of bar.querySelectorAll("button")) button.onclick = close;
  bar.querySelector(".do").onclick = () => copy(text).catch(() => {
    if (!copyByHand(text)) throw new Error("refused");
  }).then(close, () => say("This browser lets no page copy. Select with Shift and the mouse, then copy."));
  bar.hidden = false;
};

if (copy) {
  navigator.clipboard.writeText = (text) => copy(text).then(() => {
    document.querySelector(".copy").hidden = true;
  }, () => offer(text));
}
