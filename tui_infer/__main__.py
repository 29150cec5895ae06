"""``python -m tui_infer``."""

from tui_infer.cli import main

if __name__ == "__main__":
    main()
