"""The Python operator layer of a solution, as ordinary modules.

The generator splices the definitions a solution needs out of these files. Every name starts with an
underscore (a solution shares its namespace with the reference), and none of them uses exception
handling.
"""
