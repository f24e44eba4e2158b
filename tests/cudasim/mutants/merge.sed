# select.cu: the sorted list is written through the wrong index
s/running\[place\] = list\[i\];/running[i] = list[place];/
