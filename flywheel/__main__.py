"""Run the command as `python -m flywheel`."""

from flywheel.cli import main

if __name__ == "__main__":  # not in the processes that it starts, which import this module again
    main(prog_name="flywheel")
