"""Functions that are named as the module they lie in (`dtomo.algorithms.fbp`): the name means the function."""

from typing import Any

import griffe


class Exported(griffe.Extension):
    """Where a package exports a name that is a module's as well, take what the module has under that name."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Mend a package, and the packages in it, once all is read."""
        inside = {name: member for name, member in pkg.members.items() if isinstance(member, griffe.Module)}
        for module in inside.values():
            self.on_package(pkg=module)
        for name in {str(name) for name in pkg.exports or ()} & inside.keys():
            if pkg.imports.get(name) == f"{inside[name].path}.{name}":
                pkg.members[name] = griffe.Alias(name, inside[name].members[name], parent=pkg)
