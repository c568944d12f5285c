//! Members of another make, which know the wire format and nothing of us.
