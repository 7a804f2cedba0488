"""What runs from disk to disk have in common, whatever they reconstruct."""
