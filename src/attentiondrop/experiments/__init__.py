"""Comparisons of regularisers: recipe -> run -> record -> table. Nothing else in the library imports this package.

Importing the package itself loads no framework; `recipe`, `methods` and `record` need none either, so that the command
line can refuse a wrong argument at once.
"""
