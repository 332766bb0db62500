"""`topics completion`: the script that makes a shell complete."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

VARIABLE = "_TOPICS_COMPLETE"
"""Set by the script when it asks for completions."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that makes the shell complete commands, options, topics and contexts.

    bash: eval "$(topics completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit; fish:
    topics completion fish > ~/.config/fish/completions/topics.fish. Exit status: 0 printed, 2 wrong options.
    """
    typer.echo(get_completion_script(prog_name="topics", complete_var=VARIABLE, shell=shell))
