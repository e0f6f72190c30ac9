"""Where do more threads stop helping? Measures every count, fits scalability laws and recommends one."""
