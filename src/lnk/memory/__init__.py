"""One folder of text made searchable: walk, chunks, links, index, words, notes and the five calls.

It holds only what is true of any folder of text. Knows no protocol, no harness and no service.
"""
