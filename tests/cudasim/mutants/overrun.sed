# row.cu: a static shared array of half the size
s/TW_SHARED_ARRAY(float, sums, VALUE_THREADS \* 2 \* VALUE_HEADS);/TW_SHARED_ARRAY(float, sums, VALUE_THREADS * VALUE_HEADS);/
