#include "runtime/plugin/descriptor.h"
#include "tests/runtime/plugin/echo/echo.pb.h"
#include "tests/runtime/plugin/echo_role.h"

namespace ananke {
namespace {

class Echo final : public EchoRole {
 public:
  Echo(const RoleContext& context, const plugin::Echo& config) : rank_(context.rank), config_(config) {
    if (config.fall_silent()) fail(ErrorKind::resource, "no air left in {} rooms", config.rooms_size());
  }
  std::string say() const override {
    std::string said = fmt::format("{}:", rank_);
    for (unsigned i = 0; i < config_.times(); ++i) said += config_.word();
    return said;
  }

 private:
  int rank_;
  plugin::Echo config_;
};

}  // namespace

ANANKE_PLUGIN(EchoRole, Echo, plugin::Echo);

}  // namespace ananke
