"""The comparators, one file each. Every file here is imported, so a new comparator needs no other line."""
