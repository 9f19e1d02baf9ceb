// What the host backend needs of the machine, looked at before the first number is computed.
#pragma once

namespace ananke::host {

// Error(resource) naming the instructions that this build uses and this processor lacks.
void check_cpu();

// Error(resource) when sgemm gives wrong results: some OpenBLAS builds choose a broken kernel on processors that are
// newer than they are. Takes milliseconds. Also puts OpenBLAS on one thread, since the pool does the sharing.
void check_blas();

}  // namespace ananke::host
