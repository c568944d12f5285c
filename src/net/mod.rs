//! Sockets, RESP and the connections made of them. Knows nothing of topics or streams.

pub(crate) mod resp;
