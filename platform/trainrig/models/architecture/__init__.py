"""Settings of the parts of a model, one file for each choice in a run file, without torch.

Most choices are unions that are discriminated by `kind`; `decoder_fields.py` has the table that
they are keys of. Parameters, operations and bytes follow from these settings alone. The modules
that compute the parts are in the folder above, under the same file names.
"""
