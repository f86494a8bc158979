"""What crosses a process boundary: values, their parsers and their JSON Schema. No I/O."""
