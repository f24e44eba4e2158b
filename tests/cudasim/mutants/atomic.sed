# select.cu: the shared counter is raised without an atomic
s/list\[atomicAdd(&cells\[2\], 1u)\] = e;/list[cells[2]++] = e;/
