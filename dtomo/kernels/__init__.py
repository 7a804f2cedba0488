"""Array functions: NumPy arrays in, NumPy arrays out. They know nothing of geometries, files or clusters."""
