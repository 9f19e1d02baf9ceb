// Plugins whose notes the tests of the configuration read; they are never loaded.
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/context.h"

namespace ananke {
namespace {

class FakeRole {
 public:
  static constexpr const char* role = ANANKE_PLUGIN_ROLE;
  virtual ~FakeRole() = default;
};

class Fake final : public FakeRole {
 public:
  explicit Fake(const RoleContext&) {}
};

}  // namespace

ANANKE_PLUGIN(FakeRole, Fake);

}  // namespace ananke
