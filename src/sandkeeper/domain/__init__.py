"""The rules of the house, pure: no await, no clock, no I/O, and no import of the other packages.

Read in this order: ``states`` (the whole lifecycle on one screen), ``sandbox`` (the record),
``observation`` and ``transitions`` (how the outside becomes a new record), ``idle``, ``wake`` and
``acquire`` (what is to be done), ``presentation`` (what people read), ``errors`` (how it fails).
Time is always an argument, and always aware UTC.
"""
