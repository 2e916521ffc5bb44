"""A program that forks until it may not, for the tests of limits; bounded, and it ends its process group."""


def fork_bomb(forks: int) -> str:
    """Prints how many processes it had, and why no more, where fewer than `forks` were allowed."""
    return f"""\
import os, time
made = 0
try:
    for _ in range({forks}):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError as error:
    print(made, os.strerror(error.errno), flush=True)
os.killpg(0, 9)
"""
