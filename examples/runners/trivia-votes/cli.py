"""The command line: `python cli.py run`, `evaluate` and `score`."""

from __future__ import annotations

from pathlib import Path

import click
from benchmark import MAX_TURNS, VOTES, TriviaRunner

from benchmark_runner import make_cli

cli = make_cli(
    TriviaRunner,
    default_dataset_file=Path(__file__).parent / "questions.json",
    extra_run_options=[
        click.option(
            "--votes", type=click.IntRange(min=1), default=VOTES, show_default=True, help="Opinions heard."
        ),
        click.option(
            "--max-turns",
            type=click.IntRange(min=1),
            default=MAX_TURNS,
            show_default=True,
            help="Questions put to the model for one task.",
        ),
    ],
)

if __name__ == "__main__":
    cli()
