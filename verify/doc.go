// Package verify holds the models of the protocols, in Promela, and a test that lets spin check them: `make verify`.
//
// Each model NAME.pml begins with a comment that lists how it is to be checked, one line each:
//
//	/* check holds   -DFLAG=1 -DOTHER=2     why
//	   check refuted -DBROKEN=1             why */
//
// "holds" means that spin searches all states and finds no error. "refuted" is a variant with one rule taken out, in which
// spin must find an error: so the model can fail. A flag that begins with -pan: is given to the verifier, such as -pan:-m100000
// for the depth of the search. More text on the line says what the check is for.
package verify
