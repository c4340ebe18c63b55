"""The post office (design 5): sockets, links, keys. One office per plane, one thread each."""
