"""Text of PDF, Word and other documents, read in a child process that can do nothing else."""
