"""The short name of `orchestra_stages`: `import orchestra`.

Another package of PyPI is called orchestra, too. Where that is installed, write `import orchestra_stages as orchestra`.
"""

from orchestra_stages import ItemError, sink, source, stage

__all__ = ["ItemError", "sink", "source", "stage"]
