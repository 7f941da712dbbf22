"""Comparisons of regularisers: recipe -> run -> record -> table. Nothing else in the library imports this package.

Importing the package loads no framework. Reading a recipe and a method needs none either, so that the command line can
refuse a wrong argument at once.
"""
