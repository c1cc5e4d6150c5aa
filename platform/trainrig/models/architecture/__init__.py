"""What a decoder is made of, as run files choose it: one file a choice, each a union by `kind`.

`decoder_fields.py` is the table of them all. No torch in this folder: what follows from sizes alone
(parameters, operations, bytes) is known without it. The parts themselves are in the folder above,
under the same file names.
"""
