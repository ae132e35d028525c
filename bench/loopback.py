"""Measure, inside a sandbox, the median time of a request to the named port, in milliseconds."""

import http.client
import statistics
import sys
import time

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
times = []
for _ in range(200):
    started = time.perf_counter()
    connection.request("GET", "/")
    connection.getresponse().read()
    times.append((time.perf_counter() - started) * 1000)
print(statistics.median(times))
