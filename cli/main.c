#include "cli/command.h"

int main(int argc, char **argv) { return tw_main(argc, argv); }
