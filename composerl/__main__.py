"""``python -m composerl`` is ``composerl``."""

from composerl.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
