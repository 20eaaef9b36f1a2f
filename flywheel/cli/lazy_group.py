"""Import a command's module only when the command is called: `--help` and every other command start without it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import click


class LazyGroup(click.Group):
    """A group whose commands are named in a table, in the order in which `--help` lists them.

    table: name -> ("module:attribute", first sentence of its help) of a command, or a group.
    """

    def __init__(self, *args, table: Mapping[str, tuple[str, str] | LazyGroup], **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = self.table.get(name)
        if entry is None or isinstance(entry, LazyGroup):
            return entry
        module, _, attribute = entry[0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}{_describe_nearest(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {name: entry.get_short_help_str(200) for name, entry in self.table.items() if _is_group(entry)}
        commands = {name: entry[1] for name, entry in self.table.items() if not _is_group(entry)}
        for title, rows in (("Commands", commands), ("Groups of commands", groups)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))

    def iterate_commands(self, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the words of each command below this group, groups among them. path: the words before them."""
        for name, entry in self.table.items():
            yield (*path, name)
            if isinstance(entry, LazyGroup):
                yield from entry.iterate_commands((*path, name))


def _is_group(entry: object) -> bool:
    return isinstance(entry, LazyGroup)


def _describe_nearest(ctx: click.Context, name: str) -> str:
    """Which command was probably meant: of this group if one is near, else of any; empty where none is."""
    import difflib  # not at the start of every command

    here = ctx.command_path.split()[1:]
    of_group = {command: (*here, command) for command in ctx.command.table}
    of_any = {words[-1]: words for words in ctx.find_root().command.iterate_commands()}
    for known in (of_group, of_any):
        if near := difflib.get_close_matches(name, known, 1):
            return f" (did you mean `flywheel {' '.join(known[near[0]])}`?)"
    return ""
