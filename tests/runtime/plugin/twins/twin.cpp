// Built several times: another plugin with the same name, message or proto file name as test_echo; one that needs a
// function nobody has; one without an entry point.
#include "runtime/plugin/descriptor.h"
#include "tests/runtime/plugin/echo_role.h"

namespace ananke {

int function_that_nobody_has(int);

namespace {

class Twin final : public EchoRole {
 public:
  explicit Twin(const RoleContext& context) : rank_(context.rank) {
#if defined(NEEDS_MISSING)
    rank_ = function_that_nobody_has(rank_);
#endif
#if defined(THROWS_INT)
    throw 7;
#endif
    if (rank_ == 13) throw std::runtime_error("rank 13 brings bad luck");
  }
  std::string say() const override { return "twin"; }

 private:
  int rank_;
};

}  // namespace

#if defined(NO_ENTRY)
std::unique_ptr<EchoRole> not_an_entry(const RoleContext& context) { return std::make_unique<Twin>(context); }
#else
ANANKE_PLUGIN(EchoRole, Twin);
#endif

}  // namespace ananke
