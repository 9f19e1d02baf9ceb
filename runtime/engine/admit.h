// Admission of a running job: before any rank allocates, all of them tell each other what they need and what their
// nodes have, and come to the same verdict (memory/admission.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ananke/job.pb.h"
#include "ananke/memory.pb.h"
#include "runtime/memory/room.h"

namespace ananke {

class Rendezvous;
class RunControl;
class Site;
class Trainer;
struct RoleContext;

// What the job says, else the site.
JobMemory::Admission admission_of(const Job& job, const Site& site);
RoomOptions room_options(const Site& site);

// What this rank needs and where it is; the node's memory from its first rank. Opens the device where it is not the
// host.
RankNeed need_of(Trainer& trainer, const RoleContext& context, const Site& site);

class Admitter {
 public:
  // `job` is what trainers are made from; admission may give it an offload fraction. `make` makes this rank's trainer
  // anew from it. All outlive the admitter.
  Admitter(Job& job, const RoleContext& context, const Site& site, Rendezvous& rendezvous, RunControl& control,
           std::function<std::unique_ptr<Trainer>()> make);
  // A trainer that fits. Collective. Throws Error(resource) on all ranks alike where none does and the policy wants
  // one.
  std::unique_ptr<Trainer> admit();

 private:
  struct Outcome;
  Outcome judge();
  std::unique_ptr<Trainer> offload_less(double configured);
  [[noreturn]] void refuse(const Outcome& outcome, const std::string& remark) const;
  void say(const std::string& line) const;

  Job& job_;
  const RoleContext& context_;
  const Site& site_;
  Rendezvous& rendezvous_;
  RunControl& control_;
  const std::function<std::unique_ptr<Trainer>()> make_;
  std::unique_ptr<Trainer> trainer_;
  int judged_ = 0;
};

}  // namespace ananke
