#!/bin/bash
printf '#!/bin/bash\nwords="$*"\necho "${words^^}!"\n' > /usr/local/bin/shout
chmod 755 /usr/local/bin/shout
