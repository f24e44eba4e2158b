# attention.cu: the values' arrival is no longer waited for by the others
/values are here, keys are done with/d
