"""Finding out what a crash does: simulated disk, crash explorer, killed processes, fuzz targets.

Made for Treering's own promises and usable for any program that stores data: put a disk of this
package behind the few file operations of :mod:`treering.engine.journal.disk`, declare what the
program does and what must hold afterwards, and let the explorer look for the state that breaks it.
``docs/fuzz.md`` is the guide; ``python -m treering.fuzz --help`` lists the commands.
"""
