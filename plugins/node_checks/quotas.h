// What a site's quota command says (SiteQuota in proto/ananke/machine.proto).
#pragma once

#include <string>

namespace ananke {
class SiteQuota;
}

namespace ananke::node_checks {

struct QuotaUse {
  double bytes = 0, bytes_limit = 0;  // a limit of 0: there is none
  double files = 0, files_limit = 0;
};

// Of the entry with the innermost folder that `folder` lies in. Throws Error(data) where the answer does not tell.
QuotaUse read_quota(const SiteQuota& quota, const std::string& answer, const std::string& folder);

}  // namespace ananke::node_checks
