#include "launcher/exit_codes.h"

namespace ananke {

std::span<const ExitCode> exit_codes() {
  static constexpr ExitCode codes[] = {
      {ErrorKind::internal, "a bug of ours: an invariant did not hold"},
      {ErrorKind::usage, "wrong command line"},
      {ErrorKind::config, "the job, site or mesh cannot be what is meant; no step was made"},
      {ErrorKind::plugin, "a plugin was refused or failed"},
      {ErrorKind::data, "token store, text, safetensors, Hugging Face folder or run folder unusable"},
      {ErrorKind::checkpoint, "no checkpoint usable, or one could not be written"},
      {ErrorKind::numeric, "non-finite loss or gradient, or a parity check past its tolerance"},
      {ErrorKind::resource, "memory, disk, CPUs: what is needed is not there"},
      {ErrorKind::worker_failed, "a worker exited, was killed or aborted: the first cause is printed"},
      {ErrorKind::stalled, "a worker stopped answering or a wait passed its deadline"},
      {ErrorKind::interrupted, "stopped on request after a checkpoint; run again with `--resume`"},
  };
  return codes;
}

}  // namespace ananke
