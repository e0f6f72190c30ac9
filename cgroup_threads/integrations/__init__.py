"""One file a framework, named after it; each is imported only by those who use that framework."""
