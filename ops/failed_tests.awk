# Usage: awk -f failed_tests.awk [-v lines=60] test-results.xml
# From ctest's JUnit file: the last lines of what each failed test said, then the names of those that failed. Last in a
# log that is cut at its head, it is what is left to read.

function plain(text) {
  gsub(/&lt;/, "<", text)
  gsub(/&gt;/, ">", text)
  gsub(/&quot;/, "\"", text)
  gsub(/&apos;/, "'", text)
  gsub(/&amp;/, "\\&", text)
  return text
}

function take(line) { said[++count] = line }

function tell(  first, note, i) {
  names[++failed] = name
  first = count > lines ? count - lines + 1 : 1
  note = first > 1 ? "; the last " lines " of its " count " lines" : ""
  printf "\n%s failed%s:\n", name, note
  for (i = first; i <= count; ++i) print "  " plain(said[i])
}

BEGIN { if (lines == 0) lines = 60 }

/<testcase / {
  match($0, / name="[^"]*"/)
  name = plain(substr($0, RSTART + 7, RLENGTH - 8))
  fails = $0 ~ / status="fail"/
  inside = count = 0
}
/<\/testcase>/ { if (fails) tell(); fails = 0 }
inside {
  line = $0
  inside = !sub(/<\/system-out>.*/, "", line)
  if (inside || line != "") take(line)
  next
}
/<system-out>/ {
  line = $0
  sub(/.*<system-out>/, "", line)
  inside = !sub(/<\/system-out>.*/, "", line)
  if (line != "") take(line)
}

END {
  if (failed == 0) exit
  printf "\nfailed:\n"
  for (i = 1; i <= failed; ++i) print "  " names[i]
}
