"""``python -m surrogate`` is ``seer``."""

from surrogate.cli import main

if __name__ == "__main__":
    main()
