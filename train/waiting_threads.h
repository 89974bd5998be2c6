// How OpenMP's threads wait for each other.
#pragma once

namespace greyhound {

// Starts the program anew, once, with OMP_WAIT_POLICY=passive, unless the user has chosen a policy. Threads that spin
// while they wait gain nothing on an idle machine (measured), and cost a factor of ten where anything else runs, such
// as another rank. libgomp reads the variable before main, so it cannot be set later. Returns when there is nothing to
// do.
void let_waiting_threads_sleep(char** argv);

}  // namespace greyhound
