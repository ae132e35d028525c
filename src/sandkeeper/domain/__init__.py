"""The rules of Sandkeeper, pure: no await, no clock, no I/O, and no import of the other packages.

Read in this order: ``states`` (the whole lifecycle on one screen), ``sandbox`` (the record),
``observation`` and ``transitions`` (how an observation becomes a new record), ``idle``, ``wake``
and ``acquire`` (what to do next), ``presentation`` (what people read), ``errors`` (how it fails).
Time is always an argument, and always aware UTC.
"""
