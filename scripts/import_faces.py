"""Check package faces for import-linter: `__all__` in `__init__.py` names the modules that other packages may import.

A package without `__all__` hides nothing. Modules inside a package import one another freely.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from importlinter import Contract, ContractCheck, output


class PackageFaces(Contract):
    """Allow imports from another package only of modules that each package on their path names in `__all__`."""

    def check(self, graph, verbose: bool) -> ContractCheck:
        ours = {name for name in graph.modules if not graph.is_module_squashed(name)}  # no external packages
        faces = {name: _read_all(name) for name in ours if graph.find_children(name)}
        hidden = [
            f"{importer} imports {imported}: {package} does not name {child} in __all__"
            for importer in sorted(ours)
            for imported in sorted(graph.find_modules_directly_imported_by(importer) & ours)
            for package, child in _walk(imported)
            if not f"{importer}.".startswith(f"{package}.")
            and faces.get(package) is not None
            and child not in faces[package]
        ]
        missing = [
            f"{package} names {child} in __all__, which is not there"
            for package, face in faces.items()
            for child in sorted(face or ())
            if f"{package}.{child}" not in ours and child not in _defined_names(package)
        ]
        return ContractCheck(kept=not hidden and not missing, metadata={"lines": [*hidden, *missing]})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["lines"]:
            output.print_error(line)


def _walk(module: str) -> Iterator[tuple[str, str]]:
    """Yield each package on the way to a module, with its child on that way."""
    parts = module.split(".")
    for number in range(1, len(parts)):
        yield ".".join(parts[:number]), parts[number]


def _parse(package: str) -> ast.Module:
    file = Path(*package.split("."), "__init__.py")
    return ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")


def _read_all(package: str) -> set[str] | None:
    for node in _parse(package).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return None


def _defined_names(package: str) -> set[str]:
    return {getattr(node, "name", "") for node in _parse(package).body}
