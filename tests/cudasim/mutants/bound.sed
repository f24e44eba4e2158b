# keys.cu: one row too many is gathered
s/if (i >= to.length\[g\]) return;/if (i > to.length[g]) return;/
