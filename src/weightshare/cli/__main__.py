"""``python -m weightshare.cli``, where the script is not on the path."""

from weightshare.cli import main

main()
