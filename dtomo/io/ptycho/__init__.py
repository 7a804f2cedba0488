"""Files of ptychography: scans in, results out."""
