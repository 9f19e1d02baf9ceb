#include "runtime/plugin/descriptor.h"
#include "tests/runtime/plugin/echo_role.h"

namespace ananke {
namespace {

class Bare final : public EchoRole {
 public:
  explicit Bare(const RoleContext&) {}
  std::string say() const override { return "bare"; }
};

}  // namespace

ANANKE_PLUGIN(EchoRole, Bare);

}  // namespace ananke
