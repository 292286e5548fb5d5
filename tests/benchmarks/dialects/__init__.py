"""One module for each dialect that is measured: the bytes of its server, ours and the vendor's SDK."""
